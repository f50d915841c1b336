//! The batch job: sources, journal, sinks; and search over what it wrote.
