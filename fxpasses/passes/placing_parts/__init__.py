"""What putting parts on devices consists of: moving what they hold, copying what crosses, overlapping, loading."""
