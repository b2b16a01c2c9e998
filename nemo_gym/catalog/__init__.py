"""Where components are and what they say of themselves."""
