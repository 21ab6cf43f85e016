"""The index: which save points there are, the tokens they stand for, and the blocks they are made of."""
