"""What the backend says about a running server: graph dispatch, draft dispatch, values that are not numbers."""
