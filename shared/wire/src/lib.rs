//! stemma-wire
