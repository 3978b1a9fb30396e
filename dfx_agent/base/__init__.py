"""What every part of the agent uses: errors, log lines, texts, clocks, limits of HTTP."""
