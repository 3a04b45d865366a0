"""What people look at: stages as text, a schedule as swimlanes, and what it costs."""
