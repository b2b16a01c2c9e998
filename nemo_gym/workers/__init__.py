"""Work that needs a hard clock and no trust: one function, in processes that can be killed at any time."""
