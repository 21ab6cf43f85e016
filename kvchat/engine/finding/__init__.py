"""Finding engines: which there are on this computer, what each can do, what graphics cards. Runs none to stay."""
