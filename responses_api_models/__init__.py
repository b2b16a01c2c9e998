"""Server folders, of this tree and of other trees on `sys.path`, in its order."""

from pkgutil import extend_path

__path__ = extend_path([], __name__) or __path__
