"""A message's documents and pictures: chips, thumbnails, and the windows that show them."""
