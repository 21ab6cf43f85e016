"""What goes with a message: documents and pictures, read within bounds."""
