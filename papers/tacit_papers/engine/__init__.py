"""What the tables share: settings, tuned contests between methods, progress."""
