"""One turn: the words on disk, the reply and its receipt, who is answered next; between turns titles and preparing.

- **Prepare** (`chat/turn/preparing.py`). What is on show is restored at once; what is missing of it is read, and
  saved; the draft is read whenever it pauses, but for its last tokens, and never saved. Only the last selection
  counts, and a message in another chat ends it, in the middle of staging too; what is read is read in steps of a
  quarter of a second, which are never cut short (`session/reading.py`).
- **Going on.** An unfinished reply goes on in place: it is the last message of the prompt, which llama-server
  leaves open. Where states cannot be cut it has a save point at its very end as well. What an older build repeats
  of it is taken out (`reply.Echo`).
- **Begin anew.** An engine lost before the first word costs no message, be it gone or no longer able to compute (a
  GPU lost in the computer's sleep leaves `/health` well): the next one answers, once.
- **Words first.** The user's message is on disk before anything else happens; a partial reply is flushed twice a
  second. If the database fails, the words go back to the composer (`QuestionNotStored`); the draft leaves the disk
  only when they are in the chat.
"""
