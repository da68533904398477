"""What fits: envelope + rig + model -> memory plan, search for envelopes, what-if, and plan against log. Pure."""
