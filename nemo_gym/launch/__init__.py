"""Starting servers, keeping them alive, and leaving nothing behind."""
