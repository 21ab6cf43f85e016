"""The chat page: composer, context meter, header, cards, status strip."""
