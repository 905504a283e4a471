"""PaddleBox's layers under their own names, for programs that were written for it."""
