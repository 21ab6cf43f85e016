"""One turn: question, reply and receipt; between turns, titles and preparation.

- **Continuing.** An unfinished reply is continued in place: it is the last message of the prompt, which
  llama-server leaves open. If states cannot be cut, the end of the unfinished reply gets a save point as well.
- **Lost engines.** If the engine dies before the first token, or can no longer compute (after sleep it may have lost
  the GPU while `/health` still reports ok), the message is sent once more, to the next engine.
- **Storage.** The question is on disk before anything else happens; a partial reply is written twice a second. If
  the database fails, the text goes back to the composer (`QuestionNotStored`).
"""
