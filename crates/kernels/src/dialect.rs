//! The dialect of expressions: that of sqlparser's `GenericDialect`, with a bound on the work of a parse.
//!
//! The parser tries several readings of some words, and what failed in one reading is read again in the next. Nested, that takes
//! exponential time: `a.a.a.a)` with forty dots would take days. Each reading begins with a call of `parse_prefix`, which the
//! dialect may answer itself, so it counts them here.

use std::any::TypeId;
use std::cell::Cell;

use datafusion_sql::sqlparser::ast::Expr;
use datafusion_sql::sqlparser::dialect::{Dialect, GenericDialect};
use datafusion_sql::sqlparser::parser::{Parser, ParserError};

/// The most readings of one text. An expression of as many words as are permitted needs a few thousand; this many take a tenth
/// of a second.
const MAX_READINGS: u32 = 100_000;

/// `GenericDialect` for the parse of one text.
#[derive(Debug, Default)]
pub(crate) struct BoundedDialect {
    readings: Cell<u32>,
}

impl BoundedDialect {
    /// Whether the parse was ended because it took too many readings. Its error says something else.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.readings.get() >= MAX_READINGS
    }

    fn refusal(&self) -> Option<ParserError> {
        self.readings.set(self.readings.get().saturating_add(1));
        self.is_exhausted().then(|| ParserError::ParserError("it takes too long to parse".into()))
    }
}

/// Methods that answer as `GenericDialect` does.
macro_rules! as_generic {
    ($($name:ident,)*) => {
        $(fn $name(&self) -> bool {
            GenericDialect.$name()
        })*
    };
}

impl Dialect for BoundedDialect {
    fn dialect(&self) -> TypeId {
        TypeId::of::<GenericDialect>()
    }

    fn parse_prefix(&self, _parser: &mut Parser<'_>) -> Option<Result<Expr, ParserError>> {
        self.refusal().map(Err)
    }

    fn get_next_precedence(&self, _parser: &Parser<'_>) -> Option<Result<u8, ParserError>> {
        self.is_exhausted().then(|| Err(ParserError::ParserError("it takes too long to parse".into())))
    }

    fn is_delimited_identifier_start(&self, ch: char) -> bool {
        GenericDialect.is_delimited_identifier_start(ch)
    }

    fn is_identifier_start(&self, ch: char) -> bool {
        GenericDialect.is_identifier_start(ch)
    }

    fn is_identifier_part(&self, ch: char) -> bool {
        GenericDialect.is_identifier_part(ch)
    }

    as_generic! {
        supports_unicode_string_literal,
        supports_partition_by_after_order_by,
        supports_array_join_syntax,
        supports_group_by_expr,
        supports_group_by_with_modifier,
        supports_left_associative_joins_without_parens,
        supports_connect_by,
        supports_match_recognize,
        supports_pipe_operator,
        supports_start_transaction_modifier,
        supports_window_function_null_treatment_arg,
        supports_dictionary_syntax,
        supports_window_clause_named_window_reference,
        supports_parenthesized_set_variables,
        supports_select_wildcard_except,
        support_map_literal_syntax,
        allow_extract_custom,
        allow_extract_single_quotes,
        supports_extract_comma_syntax,
        supports_create_view_comment_syntax,
        supports_parens_around_table_factor,
        supports_values_as_table_factor,
        supports_create_index_with_clause,
        supports_explain_with_utility_options,
        supports_limit_comma,
        supports_update_order_by,
        supports_from_first_select,
        supports_projection_trailing_commas,
        supports_asc_desc_in_column_definition,
        supports_try_convert,
        supports_bitwise_shift_operators,
        supports_comment_on,
        supports_load_extension,
        supports_named_fn_args_with_assignment_operator,
        supports_struct_literal,
        supports_empty_projections,
        supports_nested_comments,
        supports_multiline_comment_hints,
        supports_user_host_grantee,
        supports_string_escape_constant,
        supports_array_typedef_with_brackets,
        supports_match_against,
        supports_set_names,
        supports_comma_separated_set_assignments,
        supports_filter_during_aggregation,
        supports_select_wildcard_exclude,
        supports_data_type_signed_suffix,
        supports_interval_options,
        supports_quote_delimited_string,
        supports_select_wildcard_replace,
        supports_select_wildcard_ilike,
        supports_select_wildcard_rename,
        supports_optimize_table,
        supports_install,
        supports_detach,
        supports_prewhere,
        supports_with_fill,
        supports_limit_by,
        supports_interpolate,
        supports_settings,
        supports_select_format,
        supports_comment_optimizer_hint,
        supports_constraint_keyword_without_name,
        supports_key_column_option,
        supports_comma_separated_trim,
        supports_cte_without_as,
        supports_select_item_multi_column_alias,
        supports_xml_expressions,
    }
}
