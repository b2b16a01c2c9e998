"""Environments: folders of rows and configurations. Includes the folders of other roots on sys.path, in its order."""

from pkgutil import extend_path

__path__ = extend_path([], __name__) or __path__
