-- The collector asks for every blob whether a verdict still lends it.
CREATE INDEX verdict_sidecar ON verdict (sidecar) WHERE sidecar IS NOT NULL;
