"""Work on a whole database: migration, copies, file permissions, receipt secrets."""
