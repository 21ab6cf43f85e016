"""One turn: the words on disk, the reply and its receipt, who is answered next; titles and prefetch between turns."""
