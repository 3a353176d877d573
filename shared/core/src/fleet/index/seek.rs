//! The sets that filters mean. What comes from above is asked of the groups, of which there are few.

use std::sync::Arc;

use super::{Among, Fleet, Index, Term};
use crate::fleet::GroupFold;
use crate::key::{LabelKey, LabelValue};
use crate::name::Name;
use crate::object::{ClusterId, GroupId};
use crate::requirement::{Expression, Field, Presence, Requirement, Value};
use crate::selector::{Operator, Selector, Source, Term as SelectorTerm};
use crate::traits::Trait;

/// Of more values than these a filter is asked of each node, unless it names the values.
const VALUES: usize = 1024;

/// The values of a label that are asked for.
enum Wanted<'a> {
    /// These; without one: none at all.
    These(Vec<&'a str>),
    /// Any but these.
    AllBut(Vec<&'a str>),
    /// Whichever meets what is asked.
    Meeting,
}

impl<'a> Wanted<'a> {
    fn selected(term: &'a SelectorTerm) -> Self {
        let values = || term.values().collect();
        match term.operator() {
            Operator::Equals | Operator::DoubleEquals | Operator::In => Self::These(values()),
            Operator::DoesNotExist => Self::These(Vec::new()),
            Operator::NotEquals | Operator::NotIn => Self::AllBut(values()),
            Operator::Exists => Self::AllBut(Vec::new()),
            Operator::GreaterThan | Operator::LessThan => Self::Meeting,
        }
    }

    fn required(expression: &'a Expression) -> Self {
        expression.texts().map_or(Self::Meeting, Self::These)
    }
}

impl Fleet {
    /// The nodes of a cluster.
    pub fn among_cluster(&self, cluster: ClusterId) -> Among {
        Among::any(self.groups_of(cluster).map(Term::Group))
    }

    /// The nodes that have a role, of their own or their group's.
    pub fn among_role(&self, role: &Name) -> Among {
        let groups = self.groups_that(|fold| fold.roles.contains(role));
        Among::any(groups.chain([Term::Role(role.clone())]))
    }

    /// The nodes that may have a trait, or may lack it. What a rule may give, any node may have that has reported.
    pub fn among_trait(&self, name: &Trait, has: bool) -> Among {
        if has && self.rules.gives().may_give_trait(name) {
            return Among::All;
        }
        Among::Of(Term::Trait(name.clone())).which(has)
    }

    /// The nodes that a selector may select.
    pub fn among_selected(&self, selector: &Selector) -> Among {
        let term = |term: &SelectorTerm| match term.source() {
            Source::Effective => self.among_labelled(term.key(), &Wanted::selected(term), &|value| term.matches(value)),
            Source::Reported => self.among_reported(term.key(), &Wanted::selected(term), &|value| term.matches(value)),
        };
        Among::AllOf(selector.terms().iter().map(term).collect())
    }

    /// The nodes that may meet a requirement.
    pub fn among_meeting(&self, requirement: &Requirement) -> Among {
        let (field, expression) = match requirement {
            Requirement::Trait { name, presence } => {
                return self.among_trait(name, *presence == Presence::Required);
            }
            Requirement::Field { field, expression } => (field, expression),
        };
        let meets = |value: Option<&str>| value.is_some_and(|value| expression.matches(&Value::text(value)));
        match field {
            Field::Label(key) => self.among_labelled(key, &Wanted::required(expression), &meets),
            Field::Property(name) => self.among_property(name, expression),
            Field::Fact(_) | Field::Parameter(_) => Among::All,
        }
    }

    /// The nodes whose effective label may be so.
    fn among_labelled(&self, key: &str, wanted: &Wanted<'_>, meets: &dyn Fn(Option<&str>) -> bool) -> Among {
        let Ok(key) = LabelKey::new(key) else { return Among::All };
        if self.rules.gives().may_give_label(&key) {
            return Among::All;
        }
        let of_group = |fold: &GroupFold| meets(fold.maps.labels.get(&*key).map(LabelValue::as_str));
        let speaks = Among::Of(Term::Speaks(key.clone()));
        let replaces = || Among::Of(Term::Replaces);
        let may_lack = meets(None);
        // Of a node whose group is missing nothing comes from above.
        let above = if may_lack {
            let without = Among::any(self.groups_that(|fold| !of_group(fold))).complement();
            Among::AnyOf(vec![without, replaces()])
        } else {
            let with = Among::any(self.groups_that(of_group));
            Among::AllOf(vec![with, replaces().complement()])
        };
        let mut any = vec![Among::AllOf(vec![above, speaks.complement()])];
        any.push(match wanted {
            Wanted::These(values) => among_own(&key, values),
            // Who speaks and stops the key is among them too: each is asked.
            Wanted::AllBut(values) => {
                Among::AllOf(vec![Among::Of(Term::Speaks(key.clone())), among_own(&key, values).complement()])
            }
            Wanted::Meeting => self.among_own_meeting(&key, meets),
        });
        if may_lack {
            any.push(Among::Of(Term::Stops(key.clone())));
        }
        let accepts = Among::any(self.groups_that(|fold| fold.host_labels.value.accepts(&key)));
        any.push(Among::AllOf(vec![
            accepts,
            self.among_reported(&key, wanted, &|value| value.is_some() && meets(value)),
        ]));
        Among::AnyOf(any)
    }

    /// The nodes that give a label a value themselves that may meet what is asked.
    fn among_own_meeting(&self, key: &LabelKey, meets: &dyn Fn(Option<&str>) -> bool) -> Among {
        let of = |value| Term::Own(key.clone(), value);
        let own = |term: &Term| match term {
            Term::Own(own, value) if own == key => Some(value.clone()),
            _ => None,
        };
        let least = LabelValue::new("").map(of);
        let values = least.ok().and_then(|least| self.index.as_ref()?.values(least, own));
        match values {
            Some(values) => Among::any(values.into_iter().filter(|value| meets(Some(value))).map(of)),
            None => Among::Of(Term::Speaks(key.clone())),
        }
    }

    /// The nodes of whose host a reported label may be so.
    fn among_reported(&self, key: &str, wanted: &Wanted<'_>, meets: &dyn Fn(Option<&str>) -> bool) -> Among {
        let of = |value| Term::Reported(key.into(), value);
        let may_lack = meets(None);
        let named = |values: &[&str]| values.iter().map(|value| Arc::from(*value)).collect();
        // Of those who lack the label the others are known: whose value does not meet it.
        let told: Option<Vec<Arc<str>>> = match (wanted, may_lack) {
            (Wanted::These(values), false) | (Wanted::AllBut(values), true) => Some(named(values)),
            _ => self.reported_values(key).map(|mut values| {
                values.retain(|value| meets(Some(value)) != may_lack);
                values
            }),
        };
        told.map_or(Among::All, |told| Among::any(told.into_iter().map(of)).which(!may_lack))
    }

    /// The values that hosts report of a label; `None`: there are too many.
    fn reported_values(&self, key: &str) -> Option<Vec<Arc<str>>> {
        let own = |term: &Term| match term {
            Term::Reported(own, value) if **own == *key => Some(Arc::clone(value)),
            _ => None,
        };
        self.index.as_ref()?.values(Term::Reported(key.into(), "".into()), own)
    }

    /// The nodes of which a property may meet an expression.
    fn among_property(&self, name: &Arc<str>, expression: &Expression) -> Among {
        if self.rules.gives().may_give_property(name) {
            return Among::All;
        }
        let own = |term: &Term| match term {
            Term::Property(own, value) if own == name => Some(value.clone()),
            _ => None,
        };
        let least = Term::Property(Arc::clone(name), None);
        let Some(values) = self.index.as_ref().and_then(|index| index.values(least, own)) else { return Among::All };
        let meets = |value: &Option<Arc<str>>| {
            // Of a long one nobody knows.
            let json = value.as_ref().and_then(|text| serde_json::from_str(text).ok());
            json.is_none_or(|json| Value::of(&json).is_some_and(|value| expression.matches(&value)))
        };
        Among::any(values.into_iter().filter(meets).map(|value| Term::Property(Arc::clone(name), value)))
    }

    /// The groups that a thing holds of.
    fn groups_that<'f>(&'f self, holds: impl Fn(&GroupFold) -> bool + 'f) -> impl Iterator<Item = Term> + 'f {
        let meant = move |(id, entry): (&'f GroupId, &'f crate::fleet::GroupEntry)| {
            entry.fold.as_ref().is_ok_and(|fold| holds(fold)).then_some(Term::Group(*id))
        };
        self.groups.iter().filter_map(meant)
    }
}

/// The nodes that give a label one of these values themselves.
fn among_own(key: &LabelKey, values: &[&str]) -> Among {
    let values = values.iter().filter_map(|value| LabelValue::new(value).ok());
    Among::any(values.map(|value| Term::Own(key.clone(), value)))
}

impl Index {
    /// The values of terms of one kind, from the least of them on; `None`: there are too many.
    fn values<V>(&self, least: Term, value: impl Fn(&Term) -> Option<V>) -> Option<Vec<V>> {
        let (mut values, mut from) = (Vec::new(), (least, 0));
        while let Some(((term, _), _)) = self.blocks.range(from..).next() {
            let Some(one) = value(term) else { break };
            if values.len() == VALUES {
                return None;
            }
            values.push(one);
            from = (term.clone(), u32::MAX);
        }
        Some(values)
    }
}
