"""Activities of one's own, as the guide in docs/activities.md shows them. Each runs in the tests as it stands here."""
