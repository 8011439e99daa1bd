"""What a person looks at: the HTML page, drawings, tables."""
