-- From the journal of version 0003.

-- What an undelivered message is about, in the words of its sender.
ALTER TABLE undelivered ADD COLUMN subject TEXT;
