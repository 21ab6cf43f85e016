"""`kvchat chats` and `kvchat search`: what chats there are, and what stands in them."""
