"""Tools for users. Each tool imports the core; the core imports no tool."""
