"""Where clients come in: listened for, let in or turned away, and told where what they want is answered."""
