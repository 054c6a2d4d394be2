-- A kept body has the header fields beside it that the map of its step reads.
ALTER TABLE callbacks ADD COLUMN headers TEXT;
