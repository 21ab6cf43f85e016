"""Around the page: composer, context meter, header, find bar, status strip."""
