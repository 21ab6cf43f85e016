"""One message on the page: the user's, the reply, what stands below it and what can be done with it."""
