"""Documents and pictures of a message: chips, thumbnails, and the windows that show them."""
