"""PaddleBox's names for programs that were written for it."""
