"""HTML pages of one run (`paddlebox report`), or of several side by side (`paddlebox compare`)."""
