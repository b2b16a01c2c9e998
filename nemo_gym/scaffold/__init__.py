"""The first version of a new server or environment: complete, tested, and ready to be changed."""
