//! stemma-core
