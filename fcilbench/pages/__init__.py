"""The pages of boards for a browser: what they show for each choice, and how they are packed."""
