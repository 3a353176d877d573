//! stemma-author
