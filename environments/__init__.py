"""Folders of rows and configurations. Those of other trees on the path are found here too, in the order of the path."""

from pkgutil import extend_path

__path__ = extend_path([], __name__) or __path__
