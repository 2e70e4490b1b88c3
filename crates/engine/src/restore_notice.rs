//! The notice that a surface shows for a run that a restore interrupted.

use steprail_core::run::Restored;

/// Says which calls may have been executed since the backup, and that everything after it is unknown. `backup_at` is the
/// time of the backup as the surface writes times.
pub fn restore_notice(restored: &Restored, backup_at: &str) -> String {
    let unknown = format!(
        "the database was restored from a backup of {backup_at}; what this run did after that is unknown, and resuming it \
         can repeat calls"
    );
    if restored.may_have_run.is_empty() {
        return unknown;
    }
    let calls: Vec<String> = restored.may_have_run.iter().map(|path| format!("`{path}`")).collect();
    let more = if restored.more > 0 { format!(" and {} more", restored.more) } else { String::new() };
    format!("{unknown}; these calls were in flight or could start then: {}{more}", calls.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notice_names_the_calls_and_the_time_of_the_backup() {
        let mut restored = Restored { incarnation: 2, backup_at: 0, may_have_run: Vec::new(), more: 0 };
        assert!(restore_notice(&restored, "noon").ends_with("can repeat calls"));
        restored.may_have_run = vec!["pay".into(), "each[1].send".into()];
        restored.more = 3;
        let notice = restore_notice(&restored, "noon");
        assert!(notice.contains("a backup of noon"), "{notice}");
        assert!(notice.ends_with("could start then: `pay`, `each[1].send` and 3 more"), "{notice}");
    }
}
