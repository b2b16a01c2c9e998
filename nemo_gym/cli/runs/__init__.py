"""`gym runs`: the stored runs in a folder of results."""
