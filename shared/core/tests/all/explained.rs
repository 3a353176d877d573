//! Why a node has a tag or has it not, where an extension decides that. Sentences by hand.

use std::sync::Arc;

use serde_json::{Value, json};
use stemma_core::explain::{self, Fleetwide};
use stemma_core::fleet::Change;
use stemma_core::name::{Name, TagName};
use stemma_core::object::DecidedTags;
use stemma_core::resolve::resolve_node;

use crate::made::{Made, site};

#[test]
fn the_extension_that_decided_a_tag_is_named_whether_or_not_it_gave_it() {
    let mut documents = site(&json!({}), &json!([{"id": "conf", "type": "puppet", "tags": ["nginx", "mysql"]}]));
    documents[1]["extensions"] = json!([{"roles": ["web"], "use": "rack"}]);
    let mut made = Made::of(&documents);
    let why = |made: &Made, tag: &str| -> (Value, String) {
        let resolve = |id| resolve_node(&made.fleet, &made.cache, id);
        let told = explain::tag(Fleetwide { fleet: &made.fleet, resolve: &resolve }, &made.answer("web-1"), tag);
        (told["has"].clone(), told["why"].as_str().expect("a text").to_owned())
    };
    let has = |why: &str| (json!(true), why.to_owned());
    let has_not = |why: &str| (json!(false), why.to_owned());
    let none = "no role of the node produces it, and it was not assigned";
    assert_eq!(why(&made, "nginx"), has("the node has role web, which produces it"));
    assert_eq!(why(&made, "mysql"), has_not(none));
    let mut web = (**made.node("web-1")).clone();
    let tags = vec![TagName::new("mysql").expect("a tag")];
    let decided = DecidedTags { extension: "rack".to_owned(), cluster: made.cluster(), tags, question: String::new() };
    web.spec.tags.decided.insert(Name::new("web").expect("a role"), decided);
    made.fleet.apply(Change::Node(Arc::new(web)));
    assert_eq!(why(&made, "mysql"), has("the node has role web, which produces it: so decided extension rack"));
    let withheld = format!("{none}: role web declares it, and extension rack decided otherwise for this node");
    assert_eq!(why(&made, "nginx"), has_not(&withheld));
    assert_eq!(why(&made, "other"), has_not(none));
}
