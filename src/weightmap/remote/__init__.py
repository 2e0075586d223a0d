"""Files in stores and behind HTTP."""
