"""Memory: bytes held and peaks, each arm in a process of its own."""
