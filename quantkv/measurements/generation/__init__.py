"""Generation: how far long texts through a packed cache stay those of the exact one."""
