-- How many commits the sessions of the run have made, also kept beside the journal: a journal that went back in time is known by it.
-- From here on, blobs of JSON may begin with 'c' and four bytes of CRC-32 (before: 'j').

INSERT INTO meta (name, value) VALUES ('commits', '0') ON CONFLICT DO NOTHING;
