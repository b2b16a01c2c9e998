"""What travels: the request, response and item types of every dialect, as pydantic models of our own."""
