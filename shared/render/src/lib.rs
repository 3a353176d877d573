//! stemma-render
