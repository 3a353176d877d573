//! The resources: what each row of the endpoint table does.

mod apply;
mod blobs;
mod clusters;
mod explain;
mod filter;
mod findings;
mod groups;
mod kept;
mod lists;
mod machine;
mod maps;
mod nodes;
mod objects;
mod patching;
mod place;
mod releases;
mod resolved;
mod roles;
mod routes;
mod state;
mod tags;
mod templates;
mod tokens;
mod traits;
mod view;
mod writes;
